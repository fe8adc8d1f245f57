"""The paper's figures: `retouch cam`, `overlap` and `trace`."""
