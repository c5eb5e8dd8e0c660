import AneBook
