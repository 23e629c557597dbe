//! `kinds!`: defines the kinds of arguments from a table with one row per kind.

/// Defines kinds of arguments of the calls of a subject, which is a pool or a manager. A row has three
/// types: the type that a journal stores, the type that the call takes, and the type of the value that
/// a replay owns and lends to the call. Three closures follow, which convert between these types. The
/// last item returns the argument as readable text. If the name of the `Slot` variant differs from that
/// of the kind, it is given in parentheses.
macro_rules! kinds {
    ($any:tt $subject:ty; $(
        $(#[$doc:meta])*
        $kind:ident $(($slot:ident))?: $record:ty, $live:ty, $own:ty,
            |$given:pat_param, $to:pat_param| $recorded:expr, |$held:pat_param, $from:pat_param| $owned:expr,
            |$lent:pat_param| $argument:expr, $words:expr;
    )*) => { $(
        $(#[$doc])*
        #[derive(Debug)]
        pub enum $kind {}

        $crate::calls::kind::kind! { $any $subject, $kind $($slot)?: $record, $live, $own,
            |$given, $to| $recorded, |$held, $from| $owned, |$lent| $argument, $words
        }
    )* };
}

macro_rules! kind {
    (
        [$($any:tt)*] $subject:ty, $kind:ident $($slot:ident)?: $record:ty, $live:ty, $own:ty,
        |$given:pat_param, $to:pat_param| $recorded:expr, |$held:pat_param, $from:pat_param| $owned:expr,
        |$lent:pat_param| $argument:expr, $words:expr
    ) => {
        impl<$($any)*> $crate::calls::Argument<$subject> for $kind {
            type Record = $record;
            type Live<'a> = $live;
            type Own = $own;

            fn record(live: Self::Live<'_>, to: &mut $crate::calls::Recorder<'_, $subject>) -> $record {
                let ($given, $to) = (live, to);
                $recorded
            }

            fn own(
                record: &$record,
                from: &mut <$subject as $crate::Recordable>::Memory,
            ) -> Result<$own, $crate::ReplayError> {
                let ($held, $from) = (record, from);
                $owned
            }

            fn lend<R>(own: &$own, call: impl FnOnce(Self::Live<'_>) -> R) -> R {
                let $lent = own;
                call($argument)
            }

            fn words(record: &$record) -> String {
                $words(record)
            }

            fn slot(record: &mut $record) -> $crate::calls::Slot<'_> {
                $crate::calls::kind::slot!($kind $($slot)?)(record)
            }
        }
    };
}

/// Names the variant of the enum `Slot` for a kind. It may have another name than the kind.
macro_rules! slot {
    ($kind:ident) => {
        $crate::calls::Slot::$kind
    };
    ($kind:ident $slot:ident) => {
        $crate::calls::Slot::$slot
    };
}

/// Defines kinds whose arguments implement `Copy`. A row has the kind, the types of record and
/// argument, the two conversions, and a function that returns the argument as readable text.
macro_rules! copied {
    ($($(#[$doc:meta])* $kind:ident: $record:ty, $live:ty, $to:expr, $of:expr, $words:expr;)*) => {
        $crate::calls::kind::kinds! { [S: $crate::Recordable] S; $(
            $(#[$doc])*
            $kind: $record, $live, $live,
                |live, _| {
                    let to: fn($live) -> $record = $to;
                    to(live)
                },
                |record, _| {
                    let of: fn($record) -> $live = $of;
                    Ok(of(*record))
                },
                |own| *own,
                |record: &$record| {
                    let words: fn($record) -> String = $words;
                    words(*record)
                };
        )* }
    };
}

/// Defines kinds whose arguments are slices that are recorded unchanged. A row has the kind, the type
/// of an item, and a function that returns the argument as readable text.
macro_rules! slices {
    ($($(#[$doc:meta])* $kind:ident: $item:ty, $words:expr;)*) => {
        $crate::calls::kind::kinds! { [S: $crate::Recordable] S; $(
            $(#[$doc])*
            $kind: Vec<$item>, &'a [$item], Vec<$item>,
                |items, _| items.to_vec(), |items, _| Ok(items.clone()), |items| items, $words;
        )* }
    };
}

/// Defines kinds that are lists of block ids. A journal stores the lists of all these kinds in the same
/// way.
macro_rules! lists {
    ($($(#[$doc:meta])* $kind:ident,)*) => {
        $crate::calls::kind::kinds! { [S: $crate::Recordable] S; $(
            $(#[$doc])*
            $kind: $crate::Ids, &'a [kvpool::BlockId], Vec<kvpool::BlockId>,
                |blocks, _| $crate::Ids::pack(blocks), |ids, _| Ok(ids.unpack()), |blocks| blocks,
                $crate::calls::words::blocks;
        )* }
    };
}

pub(super) use {copied, kind, kinds, lists, slices, slot};
