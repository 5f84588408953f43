//! Whether a report is as docs/report.schema.json says.

use serde_json::Value;

/// Fails with the place and the reason if it is not.
pub fn check(report: &Value) -> Result<(), String> {
    let text = include_str!("../../../../../docs/report.schema.json");
    let schema: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let schema = jsonschema::validator_for(&schema).map_err(|error| error.to_string())?;
    schema.validate(report).map_err(|error| format!("{}: {error}", error.instance_path()))
}
