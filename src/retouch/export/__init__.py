"""Plain models for programs that know nothing of `retouch`, each with a card that says what it is.

```python
from retouch.export import export, of_run

export(of_run("runs/march"), "hf", "models/march")
```
"""

from retouch.export.export_model import ExportModel, of_model, of_run
from retouch.export.write import FORMATS, Exported, Format, export

__all__ = ["FORMATS", "ExportModel", "Exported", "Format", "export", "of_model", "of_run"]
