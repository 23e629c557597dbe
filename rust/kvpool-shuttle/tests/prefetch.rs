//! Tests the threads that hash prompts ahead of a replay. The test includes their source file and runs
//! it under shuttle. It checks that prompts arrive in the order of the trace, that queues are bounded,
//! and that the threads end.

#![expect(clippy::expect_used, reason = "helpers of tests may panic as tests do")]

mod common;

/// The module around the included file, with the items that the file expects in its parent module, and
/// the models.
#[path = "../../kvpool-replay/src/replay"]
mod replay {
    #[expect(dead_code, reason = "one of its forms of prompts is enough here")]
    mod prefetch;

    use std::sync::Arc;

    use kvpool::{BlockHasher, HasherConfig};
    use kvpool_replay::replay::ReplayError;
    use kvpool_replay::trace::{Trace, TraceRequest};

    use self::prefetch::{Form, Prefetch};
    use crate::common::check;

    /// Number of requests. It is larger than the capacity of two threads' queues.
    const REQUESTS: u64 = 40;

    fn start(threads: usize) -> Prefetch {
        let request = |id| TraceRequest {
            timestamp_ms: id as f64,
            input_length: 4 + id as u32 % 3,
            output_length: 1,
            hash_ids: vec![id].into(),
        };
        let trace = Trace::new((0..REQUESTS).map(request).collect(), 8).expect("a trace");
        let config = HasherConfig { block_size: 4, ..HasherConfig::default() };
        let hasher = Arc::new(BlockHasher::new(config).expect("a configuration"));
        assert!(threads <= prefetch::MAX_THREADS);
        Prefetch::start(&Arc::new(trace), &hasher, Form::Whole, threads).expect("threads")
    }

    #[test]
    fn prompts_come_in_the_order_of_the_trace() {
        check(|| {
            let mut prompts = start(2);
            for id in 0..REQUESTS {
                let tokens = prompts.next().expect("a prompt").num_tokens();
                assert_eq!(tokens, 4 + id as usize % 3, "request {id}");
            }
            // A request after the end of the trace returns an error and does not wait.
            assert!(matches!(prompts.next(), Err(ReplayError::Threads { .. })));
        });
    }

    /// If a replay is dropped before its end, its threads end, too, even if they are blocked on full
    /// queues. Shuttle waits for all threads.
    #[test]
    fn a_replay_that_is_given_up_ends_its_threads() {
        check(|| {
            let mut prompts = start(2);
            for _ in 0..2 {
                prompts.next().expect("a prompt");
            }
            drop(prompts);
        });
    }
}

mod expand {
    pub(crate) use kvpool_replay::expand::{TokenExpander, output_token};
}

mod sync {
    pub(crate) use shuttle::{sync::mpsc, thread};
}

mod trace {
    pub(crate) use kvpool_replay::trace::{Trace, TraceRequest};
}
