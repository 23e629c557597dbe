//! [`Radix`] is a manager that finds prefixes by comparing tokens in a radix tree.

use std::collections::{BTreeSet, HashMap};

use super::{Batch, Manager, NumberMap};

/// A yardstick with a radix tree over the tokens of blocks. A node has a list of consecutive blocks, a
/// reference count, and a map from the first block of each child to the child. Leaves without
/// references are evicted in LRU order, starting at their last block.
///
/// There are no hashes, and a hit is exact. The blocks of a prompt are registered at its commit. The
/// blocks of generated tokens are registered at the release of the request. If a request has computed
/// content that the tree already contains, it gets the blocks of the tree. So a commit can change its
/// table. TGI and SGLang also return a slot number for each token. This tree only returns blocks, as
/// kvpool does.
#[derive(Debug)]
pub struct Radix<const BLOCK_SIZE: usize> {
    /// All nodes. Node 0 is the root, which has no blocks and no reference count.
    nodes: Vec<Node<BLOCK_SIZE>>,
    /// Positions in the list `nodes` that no node uses.
    unused: Vec<usize>,
    /// The free blocks, which have no content. The last block is allocated first.
    free: Vec<u32>,
    /// Leaves without references, ordered by the time of their last release.
    leaves: BTreeSet<(u64, usize)>,
    /// Number of blocks in tree nodes without references.
    idle: usize,
    /// Number of releases so far. It serves as the time of a release in the LRU order.
    releases: u64,
    requests: NumberMap<i64, Request>,
}

#[derive(Debug)]
struct Node<const BLOCK_SIZE: usize> {
    parent: usize,
    children: HashMap<[u32; BLOCK_SIZE], usize>,
    /// For each block, its tokens.
    tokens: Vec<[u32; BLOCK_SIZE]>,
    blocks: Vec<u32>,
    /// Number of requests whose last node is this node or a node below it.
    references: usize,
    last_release: u64,
}

#[derive(Debug)]
struct Request {
    tokens: Vec<u32>,
    table: Vec<u32>,
    /// The node of the request's last block that is in the tree.
    end: usize,
    in_tree: usize,
    /// Number of tokens at the start of the request that are computed.
    computed: usize,
}

impl<const BLOCK_SIZE: usize> Node<BLOCK_SIZE> {
    fn root() -> Self {
        Self {
            parent: 0,
            children: HashMap::new(),
            tokens: Vec::new(),
            blocks: Vec::new(),
            references: 0,
            last_release: 0,
        }
    }
}

impl<const BLOCK_SIZE: usize> Radix<BLOCK_SIZE> {
    /// Creates a manager of `num_blocks` blocks, including the null block.
    #[must_use]
    pub fn new(num_blocks: usize) -> Self {
        Self {
            nodes: vec![Node::root()],
            unused: Vec::new(),
            free: (1..num_blocks as u32).rev().collect(),
            leaves: BTreeSet::new(),
            idle: 0,
            releases: 0,
            requests: NumberMap::default(),
        }
    }

    /// Follows the tokens of `rest` downwards from node `at`, and appends the blocks with these tokens
    /// to `found`. If only the first blocks of a node are equal, splits the node. Returns the last
    /// node.
    fn walk(&mut self, mut at: usize, mut rest: &[[u32; BLOCK_SIZE]], found: &mut Vec<u32>) -> usize {
        while let Some(first) = rest.first() {
            let Some(&child) = self.nodes[at].children.get(first) else { break };
            let node = &self.nodes[child];
            let equal = node.tokens.iter().zip(rest).take_while(|(known, asked)| known == asked).count();
            found.extend_from_slice(&node.blocks[..equal]);
            at = if equal < node.blocks.len() { self.split(child, equal) } else { child };
            rest = &rest[equal..];
        }
        at
    }

    /// Moves the first `count` blocks of a node to a new node above it. Returns the new node.
    fn split(&mut self, below: usize, count: usize) -> usize {
        let node = &mut self.nodes[below];
        let lower_tokens = node.tokens.split_off(count);
        let lower_blocks = node.blocks.split_off(count);
        let upper = Node {
            parent: node.parent,
            children: HashMap::from([(lower_tokens[0], below)]),
            tokens: std::mem::replace(&mut node.tokens, lower_tokens),
            blocks: std::mem::replace(&mut node.blocks, lower_blocks),
            references: node.references,
            last_release: node.last_release,
        };
        let above = self.insert(upper);
        self.nodes[below].parent = above;
        above
    }

    /// Adds a node, and adds it to its parent's children.
    fn insert(&mut self, node: Node<BLOCK_SIZE>) -> usize {
        let (parent, first) = (node.parent, node.tokens[0]);
        let place = match self.unused.pop() {
            Some(place) => {
                self.nodes[place] = node;
                place
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        };
        self.nodes[parent].children.insert(first, place);
        place
    }

    /// Adds a reference to each node on the path from `at` up to `above`, but not to `above` itself.
    fn hold(&mut self, mut at: usize, above: usize) {
        while at != above {
            let node = &mut self.nodes[at];
            if node.references == 0 {
                self.idle -= node.blocks.len();
                self.leaves.remove(&(node.last_release, at));
            }
            node.references += 1;
            at = node.parent;
        }
    }

    /// Removes a reference from each node on the path from `at` up to the root.
    fn drop_references(&mut self, mut at: usize) {
        self.releases += 1;
        while at != 0 {
            let node = &mut self.nodes[at];
            node.references -= 1;
            if node.references == 0 {
                self.idle += node.blocks.len();
                node.last_release = self.releases;
                if node.children.is_empty() {
                    self.leaves.insert((self.releases, at));
                }
            }
            at = node.parent;
        }
    }

    /// Evicts blocks until `wanted` blocks are free. Returns false if too few blocks can be evicted.
    fn evict(&mut self, wanted: usize) -> bool {
        while self.free.len() < wanted {
            let Some((time, leaf)) = self.leaves.pop_first() else { return false };
            let missing = wanted - self.free.len();
            let node = &mut self.nodes[leaf];
            let kept = node.blocks.len().saturating_sub(missing);
            self.idle -= node.blocks.len() - kept;
            self.free.extend(node.blocks.drain(kept..));
            if kept > 0 {
                node.tokens.truncate(kept);
                self.leaves.insert((time, leaf));
                continue;
            }
            let (above, first) = (node.parent, node.tokens[0]);
            *node = Node::root();
            self.unused.push(leaf);
            let parent = &mut self.nodes[above];
            parent.children.remove(&first);
            if above != 0 && parent.references == 0 && parent.children.is_empty() {
                self.leaves.insert((parent.last_release, above));
            }
        }
        true
    }

    /// Adds the computed full blocks of a request to the tree. Where the tree already contains the
    /// content, the request gets the blocks of the tree, and its own blocks become free.
    fn register(&mut self, request: &mut Request) {
        let known = request.in_tree;
        let computed = &request.tokens.as_chunks().0[..request.computed / BLOCK_SIZE];
        if computed.len() <= known {
            return;
        }
        let mut found = Vec::new();
        let mut end = self.walk(request.end, &computed[known..], &mut found);
        self.hold(end, request.end);
        let from = known + found.len();
        self.free.extend_from_slice(&request.table[known..from]);
        request.table[known..from].copy_from_slice(&found);
        if from < computed.len() {
            end = self.insert(Node {
                parent: end,
                children: HashMap::new(),
                tokens: computed[from..].to_vec(),
                blocks: request.table[from..computed.len()].to_vec(),
                references: 1,
                last_release: 0,
            });
        }
        (request.end, request.in_tree) = (end, computed.len());
    }

    fn append(&mut self, id: i64, token: u32) -> bool {
        let Some(request) = self.requests.get_mut(&id) else { return false };
        if request.tokens.len() == request.table.len() * BLOCK_SIZE {
            if !self.evict(1) {
                return false;
            }
            let Some(request) = self.requests.get_mut(&id) else { return false };
            request.table.extend(self.free.pop());
        }
        let Some(request) = self.requests.get_mut(&id) else { return false };
        request.computed = request.tokens.len();
        request.tokens.push(token);
        true
    }
}

impl<const BLOCK_SIZE: usize> Manager for Radix<BLOCK_SIZE> {
    fn admit(&mut self, id: i64, prompt: &[u32]) -> Option<usize> {
        let blocks = prompt.len().div_ceil(BLOCK_SIZE);
        let full = prompt.as_chunks().0;
        let mut table = Vec::with_capacity(blocks);
        let end = self.walk(0, &full[..blocks.saturating_sub(1)], &mut table);
        self.hold(end, 0);
        let hit = table.len();
        let missing = blocks - hit;
        if missing > self.available() || !self.evict(missing) {
            self.drop_references(end);
            return None;
        }
        table.extend(self.free.drain(self.free.len() - missing..).rev());
        self.requests.insert(id, Request { tokens: prompt.to_vec(), table, end, in_tree: hit, computed: 0 });
        Some(hit)
    }

    fn commit(&mut self, id: i64, computed: usize) {
        let Some(mut request) = self.requests.remove(&id) else { return };
        request.computed = computed.min(request.tokens.len());
        self.register(&mut request);
        self.requests.insert(id, request);
    }

    fn decode(&mut self, batch: &Batch, tokens: &[u32]) -> bool {
        batch.ids.iter().zip(tokens).all(|(&id, &token)| self.append(id, token))
    }

    fn release(&mut self, id: i64) {
        let Some(mut request) = self.requests.remove(&id) else { return };
        self.register(&mut request);
        self.free.extend(request.table[request.in_tree..].iter().rev());
        self.drop_references(request.end);
    }

    fn table(&self, id: i64) -> Vec<u32> {
        self.requests.get(&id).map_or_else(Vec::new, |request| request.table.clone())
    }

    fn available(&self) -> usize {
        self.free.len() + self.idle
    }

    fn reset(&mut self) {
        let all = self.available();
        self.evict(all);
    }
}
