"""One HTML file that shows what a planner did. Opens without network and without scripts."""
