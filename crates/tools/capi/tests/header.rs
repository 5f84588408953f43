//! `include/ring3.h` is what the crate says. After a change:
//! `RING3_RENEW=1 cargo test -p ring3-capi --test header`.

use std::path::Path;

#[test]
fn the_header_is_what_the_crate_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_root_or_default(root);
    let bindings = cbindgen::Builder::new().with_src(root.join("src/lib.rs")).with_config(config);
    let mut made = Vec::new();
    bindings.generate().expect("cbindgen reads the crate").write(&mut made);
    let text = String::from_utf8_lossy(&made);
    let names: Vec<_> = text
        .lines()
        .filter(|line| !line.starts_with([' ', '#']))
        .filter_map(|line| line.split_once('('))
        .collect();
    for (nth, (name, _)) in names.iter().enumerate() {
        assert!(!names[..nth].iter().any(|(before, _)| before == name), "{name} is declared twice");
    }
    assert!(
        text.contains("ring3_card_take(")
            && text.contains("ring3_disk_take(")
            && text.contains("ring3_bar_read("),
        "{text}"
    );
    let path = root.join("include/ring3.h");
    if std::env::var_os("RING3_RENEW").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let there = std::fs::read(&path).unwrap_or_default();
    let renew = "RING3_RENEW=1 cargo test -p ring3-capi --test header";
    assert!(there == made, "include/ring3.h is out of date: {renew}\n{text}");
}
