//! Contains the tests of single operations. They are one program, because linking many programs would
//! take longer than running them. The models, the properties and the evidence tests are separate
//! programs.

mod all_or_nothing;
mod bad_input;
mod custom_policy;
mod defects;
mod engine_calls;
mod groups;
mod known;
mod manager_retention;
mod named;
mod partial_hits;
mod parts;
mod request_ids;
mod resets;
mod secrets;
mod tables;
mod tiers;
mod transfer_plans;
mod weak;
