//! The attributes `pyclass`, `pymethods` and `pyfunction` of the bindings. They extend the attributes of PyO3
//! by docstrings and checked arguments.
//!
//! Every public class, attribute, method and function gets the docstring of its stub:
//! `doc!("BlockPool.allocate")` is that of the method `allocate` of `PyBlockPool`. A public name
//! without a stub does not compile. Names with a leading underscore, constructors and setters get no
//! docstring.
//!
//! PyO3 converts arguments by itself. It trusts the length that a sequence reports, and it raises plain
//! `TypeError`s. These attributes give every argument another converter: `crate::argument::take`, with
//! the name of the argument. An argument of a type without `Argument`, such as `Vec<T>`, does not
//! compile.
//!
//! An argument with its own `#[pyo3(..)]` keeps it. Special methods, such as `__len__`, and setters
//! keep PyO3's conversion.

#![forbid(unsafe_code)]

use proc_macro::TokenStream;
use proc_macro2::{TokenStream as Tokens, TokenTree};
use quote::{ToTokens, format_ident, quote};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::{
    Attribute, Expr, FnArg, Ident, ImplItem, ImplItemFn, ItemFn, ItemImpl, ItemStruct, LitStr, Pat, Result,
    Signature, Token, Type, parse_macro_input, parse_quote,
};

/// `#[pyo3::pyclass]`, with docstrings of the class and of the fields that Python reads.
///
/// With `#[of(Stats)]` after this attribute, the class has a conversion from a `Stats`. Each field gets the
/// value of the field with the same name. If a field has its own `#[of(..)]`, it gets the value of that
/// expression, in which `it` is the `Stats`.
#[proc_macro_attribute]
pub fn pyclass(arguments: TokenStream, class: TokenStream) -> TokenStream {
    let class = parse_macro_input!(class as ItemStruct);
    documented_class(&arguments.into(), class).unwrap_or_else(syn::Error::into_compile_error).into()
}

fn documented_class(arguments: &Tokens, mut class: ItemStruct) -> Result<Tokens> {
    let name = class_name(&class.ident);
    let all = mentions(arguments.clone(), "get_all");
    let source = take_of::<Type>(&mut class.attrs)?;
    let mut values = Vec::new();
    for field in &mut class.fields {
        let Some(ident) = &field.ident else { continue };
        let value = take_of::<Expr>(&mut field.attrs)?.unwrap_or_else(|| parse_quote!(it.#ident));
        values.push(quote!(#ident: #value));
        if all || has(&field.attrs, "pyo3") {
            document(&mut field.attrs, &format!("{name}.{ident}"));
        }
    }
    document(&mut class.attrs, &name);
    let made = source.map(|source| {
        let class = &class.ident;
        quote! {
            impl From<#source> for #class {
                fn from(it: #source) -> Self {
                    Self { #(#values),* }
                }
            }
        }
    });
    Ok(quote!(#[::pyo3::pyclass(#arguments)] #class #made))
}

/// `#[pyo3::pymethods]`, with docstrings and checked arguments.
///
/// `getters! { requests: usize = self.0.requests(); }` in the block declares a getter `requests` that
/// returns the expression, which may use `py`. `repr! { free, active }` declares a `__repr__` that
/// shows the class and those fields.
#[proc_macro_attribute]
pub fn pymethods(_: TokenStream, block: TokenStream) -> TokenStream {
    let mut block = parse_macro_input!(block as ItemImpl);
    let class = class_name(&block.self_ty);
    match expanded(&class, std::mem::take(&mut block.items)) {
        Ok(items) => block.items = items,
        Err(error) => return error.into_compile_error().into(),
    }
    let mut takers = Takers::new(&block.self_ty);
    for item in &mut block.items {
        let ImplItem::Fn(method) = item else { continue };
        let name = python_name(&method.attrs, &method.sig.ident);
        if method.sig.ident.to_string().starts_with("__") || has(&method.attrs, "setter") {
            continue;
        }
        takers.convert(&mut method.sig);
        expect_many(&mut method.attrs, &method.sig);
        let private = name.starts_with('_') || method.attrs.iter().any(renamed);
        if !private && !has(&method.attrs, "new") {
            document(&mut method.attrs, &format!("{class}.{name}"));
        }
    }
    quote!(#takers #[::pyo3::pymethods] #block).into()
}

/// `#[pyo3::pyfunction]`, with its docstring and checked arguments.
#[proc_macro_attribute]
pub fn pyfunction(_: TokenStream, function: TokenStream) -> TokenStream {
    let mut function = parse_macro_input!(function as ItemFn);
    let mut takers = Takers::new(&function.sig.ident);
    takers.convert(&mut function.sig);
    expect_many(&mut function.attrs, &function.sig);
    let name = python_name(&function.attrs, &function.sig.ident);
    document(&mut function.attrs, &name);
    quote!(#takers #[::pyo3::pyfunction] #function).into()
}

/// Returns the items of an `impl` block, with `getters!` and `repr!` expanded.
fn expanded(class: &str, items: Vec<ImplItem>) -> Result<Vec<ImplItem>> {
    let mut out = Vec::new();
    for item in items {
        match item {
            ImplItem::Macro(call) if call.mac.path.is_ident("getters") => {
                let Getters(getters) = call.mac.parse_body()?;
                out.extend(getters.into_iter().map(ImplItem::Fn));
            }
            ImplItem::Macro(call) if call.mac.path.is_ident("repr") => {
                let fields = call.mac.parse_body_with(|input: ParseStream<'_>| {
                    input.parse_terminated(Ident::parse, Token![,])
                })?;
                let shown: Vec<_> = fields.iter().map(|field| format!("{field}={{:?}}")).collect();
                let format = format!("{class}({})", shown.join(", "));
                let fields = fields.iter();
                out.push(parse_quote! {
                    fn __repr__(&self) -> String {
                        format!(#format, #(self.#fields),*)
                    }
                });
            }
            item => out.push(item),
        }
    }
    Ok(out)
}

/// Parses getters: `name: type = expression;`.
struct Getters(Vec<ImplItemFn>);

impl Parse for Getters {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut getters = Vec::new();
        while !input.is_empty() {
            let name = input.call(Ident::parse_any)?;
            input.parse::<Token![:]>()?;
            let of = input.parse::<Type>()?;
            input.parse::<Token![=]>()?;
            let value = input.parse::<Expr>()?;
            input.parse::<Token![;]>()?;
            let uses_py = mentions(value.to_token_stream(), "py");
            let py = uses_py.then(|| quote!(, py: Python<'_>));
            getters.push(parse_quote! {
                #[getter]
                fn #name(&self #py) -> #of {
                    #value
                }
            });
        }
        Ok(Self(getters))
    }
}

fn mentions(tokens: Tokens, name: &str) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Group(group) => mentions(group.stream(), name),
        TokenTree::Ident(ident) => ident == name,
        _ => false,
    })
}

/// Returns the Python name of a class: the name of its type without `Py`.
fn class_name(of: &impl ToTokens) -> String {
    let name = of.to_token_stream().to_string();
    name.strip_prefix("Py").map_or(name.clone(), str::to_owned)
}

/// Returns the Python name of a function: its own, or the one in `#[pyo3(name = "..")]`.
fn python_name(attributes: &[Attribute], ident: &Ident) -> String {
    let mut name = ident.unraw().to_string();
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("pyo3")) {
        // The search ends with an error at an argument that only PyO3 knows. The error is ignored.
        let _ = attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("name") {
                name = meta.value()?.parse::<LitStr>()?.value();
            }
            Ok(())
        });
    }
    name
}

/// Returns whether an attribute gives a getter another name than that of its function.
fn renamed(attribute: &Attribute) -> bool {
    attribute.path().is_ident("getter") && attribute.meta.require_list().is_ok()
}

/// Adds the docstring that the stub has for `name`, unless the item has a doc comment.
fn document(attributes: &mut Vec<Attribute>, name: &str) {
    if !has(attributes, "doc") {
        attributes.insert(0, parse_quote!(#[doc = doc!(#name)]));
    }
}

/// Allows more than clippy's seven arguments, because Python callers pass them by keyword.
fn expect_many(attributes: &mut Vec<Attribute>, signature: &Signature) {
    if signature.inputs.len() > 7 {
        attributes.push(parse_quote!(
            #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
        ));
    }
}

/// Removes the attribute `#[of(..)]` from a list of attributes, and returns the expression in it.
fn take_of<T: Parse>(attributes: &mut Vec<Attribute>) -> Result<Option<T>> {
    let at = attributes.iter().position(|attribute| attribute.path().is_ident("of"));
    at.map(|at| attributes.remove(at).parse_args()).transpose()
}

/// The functions that convert the arguments of one class or function. There is one per argument name.
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

    /// Adds an attribute with the conversion function to each argument of a signature.
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

/// Returns whether PyO3 itself passes the argument: `py: Python<'_>`, or the object of the method.
fn is_given(of: &Type, position: usize) -> bool {
    let text = of.to_token_stream().to_string();
    text.starts_with("Python") || (position == 0 && text.contains("Self"))
}
