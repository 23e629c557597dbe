//! Contains tests of the core as one program, so that their common code is compiled and linked only
//! once.

#[path = "../capacity/main.rs"]
mod capacity;
#[path = "../evidence/main.rs"]
mod evidence;
#[path = "../images.rs"]
mod images;
#[path = "../images_of_anything.rs"]
mod images_of_anything;
#[path = "../numbers/mod.rs"]
mod numbers;
#[path = "../operations/main.rs"]
mod operations;
