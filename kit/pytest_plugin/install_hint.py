"""The command that installs what the plugin's fixtures need. Imports nothing, as the plugin itself."""

INSTALL_HINT = "pip install 'antiphon[pytest]'"
