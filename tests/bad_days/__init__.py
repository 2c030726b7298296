"""Days on which the machine, or somebody on it, behaves badly; where each is played.

SIGTERM under load                       tests/e2e/test_serve.py, field_reports/test_process.py
SIGKILL under load, restart              test_process.py
port taken                               tests/e2e/test_serve.py
certificate expired, unreadable          tests/unit/test_tls_files.py, test_tls_http3.py
disk full: log, banner, export           test_process.py
a scrape every 100 ms                    test_process.py
10,000 connections that say nothing      test_process.py
steps of the clock                       tests/unit/test_clock_steps.py
no file to open any more                 test_process.py
/readyz while a model loads              tests/field_reports/test_lifecycle.py
half a core                              test_cpu_quota.py
"""
