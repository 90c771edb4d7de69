// Package auth verifies the tokens that callers show, and says what they allow.
//
// A token is a JSON Web Token (RFC 7519) that somebody else has signed. Beside the
// registered claims exp, which is required, nbf, iat, iss, aud and sub it has the claim
// fanfare, which holds permissions:
//
//	{"subscribe": [{"channel": "chat/*", "scope": "room-1"}], "publish": […], "work": […], "admin": true}
//
// A pattern is an exact name, or a prefix and "*" behind it; "*" alone is every name. A
// list that is empty or missing gives no right. Admin does not include the others.
//
// Which algorithms a token may be signed with follows from the configured keys alone:
// HS256, HS384 and HS512 from a secret, RS… and PS… from an RSA key, ES256, ES384 or
// ES512 from the curve of an EC key, EdDSA from an Ed25519 key. What a token says of
// its own key beside the kid, such as jwk, jku or x5u, is never looked at.
//
// A [Verifier] starts one goroutine if its keys come from a URL, which ends with the
// context of [NewVerifier]. Everything may be used from any goroutine.
package auth
