"""The claims of the paper, the rules by which they are judged, and the tally of the answers."""
