//! `calls!`: generates all code about calls from one table. It generates:
//!
//! - An enum with a variant per call, in the order of the table, and a field per argument. This is the
//!   format of journals.
//! - The names of all calls. For each call: its name, its description in words, and its arguments by
//!   kind ([`super::Slot`]).
//! - `run`, which makes the arguments from a record and calls the subject with them.
//! - A trait with a method per call. The method takes the same arguments as the subject's own method,
//!   runs that method, and records the call.
//!
//! A row has a variant, a method, arguments with their kinds, and the type of the answer. For a method
//! that is written by hand, `by hand` replaces the type. The following items are optional:
//! - `known n`: if the first `n` blocks of the chain are in the index, earlier records contain them;
//! - `found |answer| n`: like `known`, but `n` depends on the answer, so the record is made after the
//!   call;
//! - `only |subject| condition`: the call is recorded only under this condition;
//! - the description in words, which contains arguments in braces;
//! - `|subject| expression`: runs the call with this expression instead of the method of the same name.
//!   For a call written by hand, this is how a replay runs the call. The form
//!   `|subject, memory| result` also receives the memory of the replay.

/// Runs a call with borrowed arguments. The macro nests one closure per argument, because each argument
/// is borrowed only inside of the closure that it is passed to.
macro_rules! lend {
    ([$subject:ty] $call:expr;) => { $call };
    ([$subject:ty] $call:expr; $field:ident: $kind:ident $(, $more:ident: $mores:ident)*) => {
        <$kind as $crate::calls::Argument<$subject>>::lend($field, |$field| {
            $crate::calls::table::lend!([$subject] $call; $($more: $mores),*)
        })
    };
}

/// Runs a call, and records it. The record is made before the call, or after the call if it depends on
/// the answer.
macro_rules! recorded {
    ($this:ident $run:ident $record:ident) => {
        $crate::calls::table::recorded!($this $run $record known 0)
    };
    ($this:ident $run:ident $record:ident known $known:expr) => {
        $this.call(
            move |subject, journal| Some($record(subject, journal, $known)),
            $run,
            |record, _, _, _| record,
        )
    };
    ($this:ident $run:ident $record:ident found |$found:ident| $indexed:expr) => {
        $this.call(|_, _| (), $run, move |(), subject, journal, $found| {
            Some($record(subject, journal, $indexed))
        })
    };
    ($this:ident $run:ident $record:ident only |$subject:ident| $condition:expr) => {
        $this.call(
            move |$subject, journal| ($condition).then(|| $record($subject, journal, 0)),
            $run,
            |record, _, _, _| record,
        )
    };
}

/// Defines the trait's method for a call. Generates nothing if the method of that call is written by
/// hand.
macro_rules! method {
    ({ $($by_hand:tt)+ } $($row:tt)*) => {};
    (
        {} [$subject:ident $calls:ident] $(#[$doc:meta])*
        $variant:ident $method:ident($($field:ident: $kind:ident),*) [$answer:ty] [$($when:tt)*]
        $(|$this:ident| $run:expr)?
    ) => {
        #[doc = concat!("[`", stringify!($subject), "::", stringify!($method), "`], recorded.")]
        $(#[$doc])*
        #[doc = "\n# Errors\nThose of that method."]
        #[inline]
        fn $method(
            &mut self $(, $field: <$kind as $crate::calls::Argument<$subject>>::Live<'_>)*
        ) -> $answer {
            let run = move |subject: &mut $subject| -> $answer {
                $crate::calls::table::run!(subject.$method($($field),*) $(|$this| $run)?)
            };
            let record = move |subject: &$subject, journal: &mut $crate::Journal, indexed: usize| {
                let to = &mut $crate::calls::Recorder { subject, journal, indexed };
                let _ = &to;
                $calls::$variant {
                    $($field: <$kind as $crate::calls::Argument<$subject>>::record($field, to)),*
                }
            };
            $crate::calls::table::recorded!(self run record $($when)*)
        }
    };
}

/// Runs a call with its method, or with its expression if the table has one.
macro_rules! run {
    ($subject:ident.$method:ident($($field:ident),*)) => { $subject.$method($($field),*) };
    ($subject:ident.$method:ident($($field:ident),*) |$this:ident| $run:expr) => {{
        let $this = $subject;
        $run
    }};
}

/// Runs a call in a replay, and returns the answer.
macro_rules! replayed {
    (
        { $($by_hand:tt)+ } [$methods:ident] $subject:ident.$method:ident($($field:ident),*) $from:ident
        |$this:ident| $run:expr
    ) => {{
        let $this = $subject;
        Ok($run)
    }};
    (
        { $($by_hand:tt)+ } [$methods:ident] $subject:ident.$method:ident($($field:ident),*) $from:ident
        |$this:ident, $memory:ident| $run:expr
    ) => {{
        let ($this, $memory) = ($subject, $from);
        $run
    }};
    (
        {} [$methods:ident] $subject:ident.$method:ident($($field:ident),*) $from:ident
        $($run:tt)*
    ) => {
        Ok($crate::calls::answer(&$methods::$method($subject $(, $field)*)))
    };
}

macro_rules! calls {
    (
        $(#[$about:meta])*
        pub enum $calls:ident of $subject:ident;
        $(#[$methods_about:meta])*
        pub trait $methods:ident;
        $(
            $(#[$doc:meta])*
            $variant:ident $method:ident($($field:ident: $kind:ident),*)
            $(by $by_hand:ident,)? $(-> $answer:ty,)?
            $(known $known:expr,)? $(found |$found:ident| $indexed:expr,)?
            $(only |$only:ident| $condition:expr,)?
            $words:literal $(, |$this:ident $(, $memory:ident)?| $run:expr)?;
        )*
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[expect(missing_docs, reason = "the fields are the arguments of the methods named")]
        pub enum $calls { $(
            #[doc = concat!("[`", stringify!($subject), "::", stringify!($method), "`]")]
            $(#[$doc])*
            $variant { $($field: <$kind as $crate::calls::Argument<$subject>>::Record),* }
        ),* }

        impl $crate::calls::Words for $calls {
            fn call(&self) -> &'static str {
                match self { $( Self::$variant { .. } => stringify!($method) ),* }
            }

            fn words(&self) -> String {
                match self { $( Self::$variant { $($field),* } => {
                    $(
                        let $field = <$kind as $crate::calls::Argument<$subject>>::words($field);
                        let _ = &$field;
                    )*
                    format!($words)
                } )* }
            }
        }

        impl $crate::calls::Slots for $calls {
            const NAMES: &'static [&'static str] = &[$(stringify!($method)),*];

            fn slots(&mut self) -> Vec<$crate::calls::Slot<'_>> {
                match self { $( Self::$variant { $($field),* } => {
                    vec![$(<$kind as $crate::calls::Argument<$subject>>::slot($field)),*]
                } )* }
            }
        }

        impl $calls {
            /// Runs the recorded call on a pool or manager, with arguments that are made from the
            /// record.
            pub(crate) fn run(
                &self,
                subject: &mut $crate::Journaled<$subject>,
                from: &mut <$subject as $crate::Recordable>::Memory,
            ) -> Result<$crate::Answer, $crate::ReplayError> {
                match self { $( Self::$variant { $($field),* } => {
                    $(let $field = &<$kind as $crate::calls::Argument<$subject>>::own($field, from)?;)*
                    $crate::calls::table::lend!([$subject]
                        $crate::calls::table::replayed!({ $($by_hand)? } [$methods]
                            subject.$method($($field),*) from $(|$this $(, $memory)?| $run)?);
                        $($field: $kind),*)
                } )* }
            }
        }

        $(#[$methods_about])*
        pub trait $methods: $crate::Recording<Subject = $subject> { $(
            $crate::calls::table::method! {
                { $($by_hand)? } [$subject $calls] $(#[$doc])*
                $variant $method($($field: $kind),*) [$($answer)?]
                [$(known $known)? $(found |$found| $indexed)? $(only |$only| $condition)?]
                $(|$this $(, $memory)?| $run)?
            }
        )* }

        impl<R: $crate::Recording<Subject = $subject>> $methods for R {}
    };
}

pub(crate) use {calls, lend, method, recorded, replayed, run};
