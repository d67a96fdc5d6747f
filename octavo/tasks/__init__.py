"""What a model's outputs mean: one module a task.

Import from the modules: a service that decodes outputs (`octavo.tasks.predict`) needs nothing of what scores them.
"""
