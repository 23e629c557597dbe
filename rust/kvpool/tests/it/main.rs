//! Tests of the core in one program: what many test programs have in common is compiled and linked once.

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
