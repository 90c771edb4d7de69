// Package browsertest runs pages in a real browser for tests: [Start] starts the
// headless Chromium that FANFARE_TEST_CHROMIUM names, with an empty profile, and ends
// it with the test.
//
// What a page writes to its console goes to the test's log. A warning, an error or an
// exception there fails the test unless it was allowed ([Page.Allow]).
//
// Methods fail the test when they cannot do what they are asked, also by what they
// wait for within [Patience]; call them from the test's goroutine. The package is for
// tests only.
package browsertest
