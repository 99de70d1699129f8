"""Other engines, each run in a process of its own by a script that imports nothing of ours."""
