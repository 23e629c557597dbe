//! `Admission` decides whether the store writes an offered object. `Answers` keeps what a shared back
//! end recently answered to the question whether an object exists.
//!
//! Owns: the keys of objects that were offered once, in bounded memory (`Ghosts` of the policies). By
//! default, only the second offer of an object is written, so a prompt that is never repeated costs no
//! write. Both types read no clock and draw no random numbers.

use std::collections::VecDeque;
use std::time::Duration;

use hashbrown::HashMap;
use kvpool::PoolError;
use kvpool_policies::parts::Ghosts;

use crate::object::ObjectKey;

/// The rule by which a store decides whether it writes an object that a caller offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Admit {
    /// Writes an object at its second offer, if the store still remembers the first one. This spares SSDs,
    /// because writes wear them out.
    #[default]
    SecondTouch,
    /// The first offer.
    Always,
    /// Never.
    Never,
}

#[derive(Debug)]
pub(crate) struct Admission {
    seen: Ghosts,
}

/// Mixes the hash and the group of a key into one number.
fn number(key: &ObjectKey) -> u64 {
    key.hash.key() ^ u64::from(key.group).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Admission {
    /// Creates an `Admission` that remembers at most `capacity` first offers.
    pub(crate) fn new(capacity: usize) -> Result<Self, PoolError> {
        Ok(Self { seen: Ghosts::new(1, capacity)? })
    }

    /// Returns whether the store writes an object that is offered now. If not, remembers the offer.
    pub(crate) fn admits(&mut self, key: &ObjectKey, how: Admit) -> bool {
        match how {
            Admit::Always => true,
            Admit::Never => false,
            Admit::SecondTouch => {
                let key = number(key);
                let again = self.seen.take(key).is_some();
                if !again {
                    self.seen.push(0, key);
                }
                again
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Answer {
    until: Duration,
    there: bool,
    /// Number of the first task that the store sent after this answer arrived. The results of tasks
    /// with smaller numbers are older than the answer and do not replace it.
    from: u64,
}

#[derive(Debug)]
pub(crate) struct Answers {
    last: HashMap<ObjectKey, Answer>,
    /// The time at which each answer expires, and its key, oldest first. A key with two answers occurs
    /// twice.
    by_age: VecDeque<(Duration, ObjectKey)>,
    capacity: usize,
    lasts: Duration,
}

impl Answers {
    pub(crate) fn new(capacity: usize, lasts: Duration) -> Self {
        Self { last: HashMap::new(), by_age: VecDeque::new(), capacity, lasts }
    }

    /// Records the answer of the back end whether the object exists. `next` is the number of the task
    /// that the store will send next.
    pub(crate) fn report(&mut self, key: ObjectKey, there: bool, now: Duration, next: u64) {
        let until = now.saturating_add(self.lasts);
        self.last.insert(key, Answer { until, there, from: next });
        self.by_age.push_back((until, key));
        while self.by_age.len() > self.capacity
            && let Some((until, oldest)) = self.by_age.pop_front()
        {
            if self.last.get(&oldest).is_some_and(|last| last.until == until) {
                self.last.remove(&oldest);
            }
        }
    }

    /// Returns whether the object exists, according to the last answer. Returns `None` if there is no
    /// answer or if it has expired.
    pub(crate) fn of(&self, key: &ObjectKey, now: Duration) -> Option<bool> {
        self.last.get(key).filter(|last| now < last.until).map(|last| last.there)
    }

    /// Returns the answer if it was recorded after `task` was sent. It is then newer than the result of
    /// that task.
    pub(crate) fn since(&self, key: &ObjectKey, task: u64) -> Option<bool> {
        self.last.get(key).filter(|last| last.from > task).map(|last| last.there)
    }

    pub(crate) fn forget(&mut self, key: &ObjectKey) {
        self.last.remove(key);
    }

    pub(crate) fn forget_all(&mut self) {
        self.last.clear();
        self.by_age.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvpool::BlockHash;

    fn key(n: u8, group: u32) -> ObjectKey {
        ObjectKey { hash: BlockHash::from_bytes([n; 32]), group }
    }

    #[test]
    fn the_second_offer_is_admitted_while_the_first_is_remembered() {
        let mut admission = Admission::new(2).unwrap();
        let mut offer = |n, group| admission.admits(&key(n, group), Admit::SecondTouch);
        assert_eq!([offer(1, 0), offer(1, 1), offer(1, 0), offer(1, 1)], [false, false, true, true]);
        assert_eq!([offer(1, 0), offer(2, 0), offer(3, 0), offer(1, 0)], [false; 4], "1 was forgotten for 3");
        assert!(admission.admits(&key(9, 0), Admit::Always));
        assert!(!admission.admits(&key(9, 0), Admit::Never));
    }

    #[test]
    fn answers_expire_and_are_bounded() {
        let second = Duration::from_secs(1);
        let mut answers = Answers::new(2, second);
        answers.report(key(1, 0), false, Duration::ZERO, 5);
        assert_eq!([answers.since(&key(1, 0), 4), answers.since(&key(1, 0), 5)], [Some(false), None]);
        assert_eq!(answers.of(&key(1, 0), second / 2), Some(false));
        assert_eq!(answers.of(&key(1, 0), second), None);
        answers.report(key(1, 0), true, second, 0);
        answers.report(key(2, 0), false, second, 0);
        assert_eq!(answers.of(&key(1, 0), second), Some(true), "reported again");
        answers.report(key(3, 0), false, second, 0);
        assert_eq!((answers.of(&key(1, 0), second), answers.of(&key(2, 0), second)), (None, Some(false)));
        answers.forget(&key(2, 0));
        assert_eq!(answers.of(&key(2, 0), second), None);
        answers.forget_all();
        assert_eq!(answers.of(&key(3, 0), second), None);
    }
}
