//! Tables of tests that differ in their arguments alone.

/// A test for each name, which calls the function with each of the lists of arguments behind it.
macro_rules! cases {
    ($call:ident; $($name:ident: $(($($argument:expr),+))+;)+) => { $(
        #[test]
        fn $name() {
            $($call($($argument),+);)+
        }
    )+ };
}
pub(crate) use cases;
