def class_names(task):
    return task.classes if isinstance(task.classes, tuple) else None
