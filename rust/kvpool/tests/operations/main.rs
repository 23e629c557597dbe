//! Tests of single operations in one program, because linking one program for each takes longer than
//! running them. The models, the properties and the evidence have their own programs.

mod all_or_nothing;
mod bad_input;
mod custom_policy;
mod defects;
mod engine_calls;
mod groups;
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
