//! Calls of managers as plain data: what [`crate::Journaled::apply`] takes. Each has the name of the call that it makes, and that
//! call's arguments.
//!
//! Owns: which calls are recorded, what of them, and when it is taken. Most records say what was asked and are taken before;
//! what an operation found, or filled, is taken behind it.

pub mod manager;
mod step;

use crate::Journal;

/// Tells a closure what its arguments are.
fn of<S, R>(subject: &S, journal: &mut Journal, record: impl FnOnce(&S, &mut Journal) -> R) -> R {
    record(subject, journal)
}

/// Likewise.
fn on<S, A>(subject: &mut S, run: impl FnOnce(&mut S) -> A) -> A {
    run(subject)
}

/// An operation, and what it is asked.
macro_rules! operation {
    ($(#[$doc:meta])* $name:ident {}) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;
    };
    ($(#[$doc:meta])* $name:ident $(<$life:lifetime>)? { $($field:ident: $kind:ty),* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        #[expect(missing_docs, reason = "the fields are the arguments of the call named")]
        pub struct $name $(<$life>)? { $(pub $field: $kind),* }
    };
}

/// Operations whose record is taken before they run: their fields, the answer, how they run, and the record, which may be none.
macro_rules! operations {
    ($subject:ty, $answers:ident, $record:ty; $(
        $(#[$doc:meta])*
        $name:ident $(<$life:lifetime>)? { $($field:ident: $kind:ty),* } -> $answer:ty, $run:expr, $written:expr;
    )*) => { $(
        super::operation!($(#[$doc])* $name $(<$life>)? { $($field: $kind),* });

        impl $(<$life>)? crate::Operation<$subject> for $name $(<$life>)? {
            type Answer = $answers<$answer>;
            type Before = Option<$record>;

            fn before(&self, subject: &$subject, journal: &mut crate::Journal) -> Self::Before {
                let Self { $($field),* } = *self;
                super::of(subject, journal, $written).into()
            }

            #[inline]
            fn run(self, subject: &mut $subject) -> Self::Answer {
                let Self { $($field),* } = self;
                super::on(subject, $run)
            }

            fn record(
                before: Self::Before,
                _: &$subject,
                _: &mut crate::Journal,
                _: &Self::Answer,
            ) -> Option<$record> {
                before
            }
        }
    )* };
}

use operation;
use operations;
