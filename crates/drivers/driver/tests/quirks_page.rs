//! The page of the quirks is the one that is made of the tables.

use ring3_driver::registry;

#[test]
fn the_page_of_the_documents_is_made_of_the_tables() {
    let page = ring3_quirks::page(registry::quirks());
    assert!(page.contains(" 0 unclassified."));
    let is_same = include_str!("../../../../docs/quirks.md") == page;
    assert!(is_same, "ring3 quirks show --markdown > docs/quirks.md");
}
