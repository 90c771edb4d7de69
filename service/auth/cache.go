package auth

import (
	"crypto/sha256"
	"sync"
	"time"
)

const (
	// cacheEntries is how many tokens a generation of the cache holds.
	cacheEntries = 8192
	// cacheAge is how long a token is not verified again. It bounds for how long a token
	// is taken whose key the issuer has withdrawn.
	cacheAge = time.Minute
)

// cache has the tokens that were verified last, by their hashes: verifying a signature
// costs more than publishing a frame. It has two generations, of which the older is
// forgotten when the newer is full, so that its size is bounded without an order to keep.
type cache struct {
	mu           sync.Mutex // guards what follows
	newer, older map[tokenHash]cached
}

type tokenHash [sha256.Size]byte

type cached struct {
	identity *Identity
	verified time.Time
}

// get returns who has a token that was verified not long ago; nil otherwise.
func (c *cache) get(token tokenHash, now time.Time) *Identity {
	c.mu.Lock()
	defer c.mu.Unlock()
	found, ok := c.newer[token]
	if !ok {
		if found, ok = c.older[token]; ok {
			c.putLocked(token, found)
		}
	}
	if !ok || now.Sub(found.verified) >= cacheAge {
		return nil
	}
	return found.identity
}

func (c *cache) put(token tokenHash, identity *Identity, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.putLocked(token, cached{identity, now})
}

func (c *cache) putLocked(token tokenHash, entry cached) {
	if c.newer == nil || len(c.newer) >= cacheEntries {
		c.older, c.newer = c.newer, make(map[tokenHash]cached)
	}
	c.newer[token] = entry
}
