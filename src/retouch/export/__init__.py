"""Plain models and adapters for programs that do not use `retouch`, each with a model card.

```python
from retouch.export import export, of_run

export(of_run("runs/march"), "hf", "models/march")
```
"""

from retouch.export.export_model import ExportModel, of_model, of_run
from retouch.export.formats import FORMATS, Format
from retouch.export.push import Pushed, push
from retouch.export.write import Exported, export

__all__ = [
    "FORMATS",
    "ExportModel",
    "Exported",
    "Format",
    "Pushed",
    "export",
    "of_model",
    "of_run",
    "push",
]
