//! The frame of every page.

use maud::{DOCTYPE, Markup, html};

use super::{View, button};
use crate::http::Reply;
use crate::problem::Problem;

/// A page without its frame.
pub struct Content {
    /// Title.
    pub title: String,
    /// What it shows.
    pub body: Markup,
}

/// The pages, with their paths.
const PAGES: [(&str, &str); 8] = [
    ("/", "Now"),
    ("/jobs", "Jobs"),
    ("/queues", "Queues"),
    ("/hosts", "Hosts"),
    ("/flows", "Flows"),
    ("/files", "Files"),
    ("/health", "Health"),
    ("/studies", "Studies"),
];

fn head(title: &str) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            title { (title) " - Forebay" }
            link rel="icon" href="/icon.svg";
            link rel="stylesheet" href="/style.css";
            script src="/chart.js" defer {}
            script src="/page.js" defer {}
        }
    }
}

fn is_here(path: &str, of: &str) -> bool {
    if of == "/" { path == "/" } else { path.split('/').nth(1) == of.split('/').nth(1) }
}

/// A page in its frame.
pub fn page(view: &View<'_>, status: u16, content: &Content) -> Reply {
    let path = &view.request.path;
    let firing = view.site.app.alerts.firing();
    let text = html! {
        (DOCTYPE)
        html lang="en" {
            (head(&content.title))
            body.site {
                a.skip href="#main" { "Skip to the content" }
                header {
                    nav aria-label="Pages" {
                        ul {
                            @for (of, name) in PAGES {
                                li {
                                    a href=(of) aria-current=[is_here(path, of).then_some("page")] {
                                        (name)
                                        @if of == "/health" && firing > 0 {
                                            span.count title="alerts" { (firing) }
                                        }
                                    }
                                }
                            }
                        }
                    }
                    div.user { span { (view.who.user) } (button(view, "/logout", "Log out")) }
                }
                main id="main" tabindex="-1" {
                    h1 { (content.title) }
                    (content.body)
                }
                p.unseen id="state" role="status" {}
            }
        }
    };
    Reply::new(status, "text/html; charset=utf-8", text.into_string())
}

/// A page that says why there is nothing else.
pub fn failed(view: &View<'_>, problem: &Problem) -> Reply {
    let body = html! {
        p.problem { (problem.detail) }
        p { a href="/" { "Back to the first page" } }
    };
    page(view, problem.status, &Content { title: problem.title().to_owned(), body })
}

/// The page for those who are not logged in.
pub fn stranger(status: u16, reason: Option<&str>) -> Reply {
    let text = html! {
        (DOCTYPE)
        html lang="en" {
            (head("Log in"))
            body.site {
                main id="main" {
                    h1 { "Log in" }
                    @if let Some(reason) = reason { p.problem { (reason) } }
                    p { "On a machine of the grid, print a link that logs you in, and open it here:" }
                    pre { code { "forebay web login" } }
                    p { "Or give a token, as " code { "forebay web token" } " prints it:" }
                    form.login method="post" action="/login" {
                        label for="token" { "Token" }
                        input type="password" id="token" name="token" autocomplete="off" required;
                        button type="submit" { "Log in" }
                    }
                }
            }
        }
    };
    Reply::new(status, "text/html; charset=utf-8", text.into_string())
}
