"""One file per dialect, each with one constant `DIALECT` named like its file. The folder is the registry."""
