"""The published pages: from results files to HTML, with the standard library alone.

``site.write`` writes the ladder's pages: a page for each machine and commit, and the index. They
need no network and no server. ``asv_index.adapt`` links them from asv's own page, whose scripts it
takes from ``vendor`` instead of the network.
"""
