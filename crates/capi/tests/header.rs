//! `include/ring3.h` is what the crate says. After a change: `RING3_RENEW=1 cargo test -p ring3-capi --test header`.

use std::path::Path;

#[test]
fn the_header_is_what_the_crate_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_root_or_default(root);
    let bindings = cbindgen::Builder::new().with_src(root.join("src/lib.rs")).with_config(config);
    let sources = ["error", "device", "bar", "dma", "irq", "card/mod"];
    let bindings = sources.iter().fold(bindings, |bindings, name| bindings.with_src(root.join(format!("src/{name}.rs"))));
    let mut made = Vec::new();
    bindings.generate().expect("cbindgen reads the crate").write(&mut made);
    let path = root.join("include/ring3.h");
    if std::env::var_os("RING3_RENEW").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let there = std::fs::read(&path).unwrap_or_default();
    let renew = "RING3_RENEW=1 cargo test -p ring3-capi --test header";
    assert!(there == made, "include/ring3.h is out of date: {renew}\n{}", String::from_utf8_lossy(&made));
}
