//! Defines three units of length: [`Tokens`], [`HashUnits`] and [`Blocks`].
//!
//! Groups have blocks of different sizes, and a prompt is hashed in units of yet another size. If code
//! uses a number in the wrong unit, hits are wrong, and tests with one group do not detect it
//! (vllm#55600). So each unit is a separate type. Only [`super::GroupSpec`] and [`super::Groups`]
//! convert between them.

use std::fmt;

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident, $one:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub usize);

        impl $name {
            /// The value 0.
            pub const ZERO: Self = Self(0);

            /// Adds `more`. If the sum is too large, returns the largest number.
            #[must_use]
            pub const fn plus(self, more: Self) -> Self {
                Self(self.0.saturating_add(more.0))
            }

            /// Subtracts `fewer`. The result is at least 0.
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
    /// A number of tokens of a prompt, or a position among them.
    Tokens, "token"
}
unit! {
    /// A number of hash units, or a position among them. A [`crate::HashChain`] has one hash per hash
    /// unit.
    HashUnits, "hash unit"
}
unit! {
    /// A number of blocks of one group, or a position in its block table.
    Blocks, "block"
}
