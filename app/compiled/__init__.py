"""The modules on the path of a request, compiled by mypyc where somebody has had them compiled."""
