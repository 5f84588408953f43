//! The tables of quirks: the page that is made of them, and the tests that they name.

use ring3_driver::registry;

#[test]
fn the_page_of_the_documents_is_made_of_the_tables() {
    let page = ring3_quirks::page(registry::quirks(), &registry::cards());
    assert_eq!(page.matches(" 0 unclassified.").count(), registry::quirks().count());
    let is_same = include_str!("../../../../docs/quirks.md") == page;
    assert!(is_same, "ring3 quirks show --markdown > docs/quirks.md");
}

#[test]
fn every_test_that_a_table_names_is_there() {
    let tests = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    for (_, table) in registry::quirks() {
        for (flag, test) in
            table.flags.iter().filter_map(|(name, flag)| Some((name, flag.test.as_ref()?)))
        {
            let (file, name) = test.split_once(": ").unwrap();
            let text = std::fs::read_to_string(tests.join(file)).unwrap();
            assert!(text.contains(&format!("fn {name}()")), "{flag}: {test}");
        }
    }
}
