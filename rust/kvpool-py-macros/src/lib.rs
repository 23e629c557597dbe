//! `pymethods` and `pyfunction` of the bindings: the attributes of PyO3, with checked arguments.
//!
//! PyO3 converts arguments by itself. It trusts the length that a sequence claims, and it raises bare `TypeError`s. These
//! attributes give every argument a converter instead: `crate::argument::take`, with the name of the argument. An argument of a
//! type without `Argument`, such as `Vec<T>`, does not compile.
//!
//! An argument with a `#[pyo3(..)]` of its own keeps that. Special methods, such as `__len__`, and setters keep what PyO3 does.

#![forbid(unsafe_code)]

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::{ToTokens, format_ident, quote};
use syn::ext::IdentExt;
use syn::{
    Attribute, FnArg, Ident, ImplItem, ItemFn, ItemImpl, Pat, Signature, Type, parse_macro_input, parse_quote,
};

/// `#[pyo3::pymethods]`, with checked arguments.
#[proc_macro_attribute]
pub fn pymethods(_: TokenStream, block: TokenStream) -> TokenStream {
    let mut block = parse_macro_input!(block as ItemImpl);
    let mut takers = Takers::new(&block.self_ty);
    for item in &mut block.items {
        if let ImplItem::Fn(method) = item
            && !method.sig.ident.to_string().starts_with("__")
            && !has(&method.attrs, "setter")
        {
            takers.convert(&mut method.sig);
        }
    }
    quote!(#takers #[::pyo3::pymethods] #block).into()
}

/// `#[pyo3::pyfunction]`, with checked arguments.
#[proc_macro_attribute]
pub fn pyfunction(_: TokenStream, function: TokenStream) -> TokenStream {
    let mut function = parse_macro_input!(function as ItemFn);
    let mut takers = Takers::new(&function.sig.ident);
    takers.convert(&mut function.sig);
    quote!(#takers #[::pyo3::pyfunction] #function).into()
}

/// The converters of one class or function, one for each name of an argument.
struct Takers {
    owner: String,
    names: Vec<Ident>,
}

impl Takers {
    fn new(owner: &impl ToTokens) -> Self {
        Self { owner: owner.to_token_stream().to_string(), names: Vec::new() }
    }

    fn taker(&self, name: &Ident) -> Ident {
        format_ident!("take_{}_{}", self.owner, name.unraw())
    }

    /// Gives each argument its converter.
    fn convert(&mut self, signature: &mut Signature) {
        for (position, argument) in signature.inputs.iter_mut().enumerate() {
            if let FnArg::Typed(argument) = argument
                && let Pat::Ident(pattern) = &*argument.pat
                && !has(&argument.attrs, "pyo3")
                && !is_given(&argument.ty, position)
            {
                let taker = self.taker(&pattern.ident);
                if !self.names.contains(&pattern.ident) {
                    self.names.push(pattern.ident.clone());
                }
                argument.attrs.push(parse_quote!(#[pyo3(from_py_with = #taker)]));
            }
        }
    }
}

impl ToTokens for Takers {
    fn to_tokens(&self, tokens: &mut Tokens) {
        for name in &self.names {
            let (taker, text) = (self.taker(name), name.unraw().to_string());
            tokens.extend(quote! {
                #[allow(non_snake_case)]
                fn #taker<'a, 'py, T: crate::argument::Argument<'a, 'py>>(
                    object: &'a ::pyo3::Bound<'py, ::pyo3::PyAny>,
                ) -> ::pyo3::PyResult<T> {
                    crate::argument::take(#text, object)
                }
            });
        }
    }
}

fn has(attributes: &[Attribute], name: &str) -> bool {
    attributes.iter().any(|attribute| attribute.path().is_ident(name))
}

/// Whether PyO3 gives the argument, not the caller: `py: Python<'_>`, or the object of the method.
fn is_given(of: &Type, position: usize) -> bool {
    let text = of.to_token_stream().to_string();
    text.starts_with("Python") || (position == 0 && text.contains("Self"))
}
