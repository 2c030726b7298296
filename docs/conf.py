"""How Sphinx makes a site of these documents (make docs): MyST reads them, Furo shows them."""

project = "Narsil"
extensions = ["myst_parser"]
# What is written is what is read, and copied.
smartquotes = False
html_theme = "furo"
html_title = "Narsil"
# Headings are linked to as code hosts name them: page.md#its-heading.
myst_heading_anchors = 4
# Of the pages' own files nothing is copied, and nothing is asked of another host.
html_copy_source = False
html_show_copyright = False
# Excerpts of what is found would be fetched, which browsers refuse for files on a disk.
html_show_search_summary = False
