//! Facts in JSON, for a person.

use serde_json::Value;

/// Prints a line a field, nested ones indented.
pub fn print(value: &Value, indent: usize) {
    let Value::Object(fields) = value else { return outln!("{:indent$}{value}", "") };
    for (name, value) in fields {
        let name = name.replace('_', " ");
        match value {
            Value::Array(items) if items.iter().any(Value::is_object) => {
                for item in items {
                    outln!("{:indent$}{name}:", "");
                    print(item, indent + 2);
                }
            }
            Value::Array(items) if items.is_empty() => outln!("{:indent$}{name:<28} none", ""),
            Value::Array(items) => {
                let items: Vec<_> = items.iter().filter_map(Value::as_str).collect();
                outln!("{:indent$}{name:<28} {}", "", items.join("; "));
            }
            Value::String(text) => outln!("{:indent$}{name:<28} {text}", ""),
            other => outln!("{:indent$}{name:<28} {other}", ""),
        }
    }
}
