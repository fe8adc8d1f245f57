"""Plain models for programs that know nothing of `retouch`, each with a card that says what it is.

```python
from retouch.export import export, of_run

export(of_run("runs/march"), "hf", "models/march")
```
"""

from retouch.export.subject import Subject, of_model, of_run
from retouch.export.write import FORMATS, Exported, Format, export

__all__ = ["FORMATS", "Exported", "Format", "Subject", "export", "of_model", "of_run"]
