//! Units of length: [`Tokens`], [`HashUnits`], [`Blocks`].
//!
//! Groups have blocks of different sizes, and a prompt is hashed in units of a third one. A number of
//! one unit where another was meant is a wrong hit that no test of one group finds (vllm#55600), so the
//! units are types: only [`super::GroupSpec`] and [`super::Groups`] turn one into another.

use std::fmt;

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident, $one:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub usize);

        impl $name {
            /// None.
            pub const ZERO: Self = Self(0);

            /// So many more, as far as there are numbers.
            #[must_use]
            pub const fn plus(self, more: Self) -> Self {
                Self(self.0.saturating_add(more.0))
            }

            /// So many fewer, at least none.
            #[must_use]
            pub const fn minus(self, fewer: Self) -> Self {
                Self(self.0.saturating_sub(fewer.0))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{} {}{}", self.0, $one, if self.0 == 1 { "" } else { "s" })
            }
        }
    };
}

unit! {
    /// Tokens of a prompt, or a position among them.
    Tokens, "token"
}
unit! {
    /// Stretches of tokens that have a hash each: blocks of a [`crate::HashChain`].
    HashUnits, "hash unit"
}
unit! {
    /// Blocks of one group, or a position in its block table.
    Blocks, "block"
}
