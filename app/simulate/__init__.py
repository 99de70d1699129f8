"""`paceline simulate`: its command line, its config file and what it writes."""
