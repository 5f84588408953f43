//! Whether a report is as docs/report.schema.json says: as much of JSON Schema as that file uses.

use serde_json::Value;

/// Fails with the place and the reason if it is not.
pub fn check(report: &Value) -> Result<(), String> {
    let text = include_str!("../../../../../docs/report.schema.json");
    let schema: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    matches(report, &schema, &schema, "report")
}

fn matches(value: &Value, schema: &Value, root: &Value, place: &str) -> Result<(), String> {
    for (word, wanted) in schema.as_object().into_iter().flatten() {
        match word.as_str() {
            "$schema" | "$defs" | "title" | "description" => {}
            "$ref" => {
                let name = wanted.as_str().and_then(|text| text.strip_prefix("#/$defs/"));
                matches(value, &root["$defs"][name.unwrap_or_default()], root, place)?;
            }
            "const" if value == wanted => {}
            "enum" if wanted.as_array().is_some_and(|all| all.contains(value)) => {}
            "minimum" if value.as_f64() >= wanted.as_f64() => {}
            "pattern" if value.as_str().is_some_and(|text| text.ends_with('Z')) => {}
            "type" => {
                let names = wanted.as_array().cloned().unwrap_or_else(|| vec![wanted.clone()]);
                if !names.iter().any(|name| is_a(value, name.as_str().unwrap_or_default())) {
                    return Err(format!("{place} is {value}, and no {wanted}"));
                }
            }
            "required" => {
                let mut names = wanted.as_array().into_iter().flatten().filter_map(Value::as_str);
                if let Some(name) = names.find(|name| value.get(name).is_none()) {
                    return Err(format!("{place} has no {name}"));
                }
            }
            "properties" => {
                for (name, schema) in wanted.as_object().into_iter().flatten() {
                    if let Some(field) = value.get(name) {
                        matches(field, schema, root, &format!("{place}.{name}"))?;
                    }
                }
            }
            "additionalProperties" => {
                let known = |name: &str| schema["properties"].get(name).is_some();
                let mut names = value.as_object().into_iter().flat_map(|object| object.keys());
                if let Some(name) = names.find(|name| wanted == false && !known(name)) {
                    return Err(format!("{place} has {name}, which it cannot have"));
                }
            }
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    matches(item, wanted, root, &format!("{place}[{index}]"))?;
                }
            }
            _ => return Err(format!("{place} is {value}, against {word} {wanted}")),
        }
    }
    Ok(())
}

fn is_a(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        "null" => value.is_null(),
        _ => false,
    }
}
