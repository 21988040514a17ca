"""Where earmark meets frameworks: each module needs the one that it is named after, and none is loaded unasked."""
