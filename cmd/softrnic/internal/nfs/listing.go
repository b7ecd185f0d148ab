package nfs

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sort"
	"sync"
	"syscall"
	"time"
)

// listing is what a directory had at a moment, in the order of the cookies: all of it, or those
// after one cookie up to another one. Positions would be bad cookies: names would be left out, or
// come twice, when others are removed or created between two calls. Here a cookie is a digest of
// the name. It remains valid for ever, so there is no verifier.
type listing struct {
	id       identity // of the directory
	changed  time.Time
	read     time.Time
	from, to uint64 // has the entries with cookies after from, up to to
	last     bool   // and there are none after to
	entries  []entry
	size     int // bytes that they occupy
}

type entry struct {
	cookie uint64
	name   string
	number uint64
}

// cookieOf returns a name's cookie: with 63 bits, since Linux shows it to programs as an off_t. Of
// names that are chosen for it a few may have the same one, but not many.
func cookieOf(name string) uint64 {
	digest := sha256.Sum256([]byte(name))
	return max(binary.BigEndian.Uint64(digest[:])>>1, cookieParent+1)
}

// The cookies of "." and "..".
const cookieSelf, cookieParent = 1, 2

// listings are kept, so that a large directory is not read anew for each call.
type listings struct {
	mu   sync.Mutex
	kept []*listing // the last used one is last
	size int        // of all of them
}

const (
	entrySize  = 56      // bytes that an entry occupies, beside its name
	maxListing = 4 << 20 // bytes of a listing; twice that while the directory is read
	maxListed  = 64 << 20
	listingAge = 2 * time.Second
)

// get returns a kept listing to go on with after a cookie: of a directory that has not changed, or
// did so since a short time only, as when a client removes what it lists.
func (l *listings) get(id identity, changed time.Time, cookie uint64) *listing {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.kept, func(k *listing) bool {
		return k.id == id && k.from <= cookie && (cookie < k.to || k.last) &&
			(k.changed.Equal(changed) || time.Since(k.read) <= listingAge)
	})
	if i < 0 {
		return nil
	}
	k := l.kept[i]
	l.kept = append(slices.Delete(l.kept, i, i+1), k)
	return k
}

func (l *listings) put(k *listing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	drop := func(i int) {
		l.size -= l.kept[i].size
		l.kept = slices.Delete(l.kept, i, i+1)
	}
	if i := slices.IndexFunc(l.kept, func(old *listing) bool { return old.id == k.id && old.from == k.from }); i >= 0 {
		drop(i)
	}
	l.kept = append(l.kept, k)
	l.size += k.size
	for l.size > maxListed || len(l.kept) > maxKept {
		drop(0)
	}
}

// add adds an entry. From time to time the ones with the highest cookies go, so that the memory
// does not grow with the directory.
func (l *listing) add(name string, number uint64) {
	cookie := cookieOf(name)
	if cookie <= l.from || cookie > l.to {
		return
	}
	l.entries = append(l.entries, entry{cookie, name, number})
	if l.size += entrySize + len(name); l.size > 2*maxListing {
		l.cut()
	}
}

// cut sorts the entries, and keeps the first ones. Those with one cookie are not parted.
func (l *listing) cut() {
	slices.SortFunc(l.entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.cookie, b.cookie), cmp.Compare(a.name, b.name))
	})
	size := 0
	for i, e := range l.entries {
		if size > maxListing && e.cookie != l.entries[i-1].cookie {
			clear(l.entries[i:])
			l.entries, l.size = l.entries[:i], size
			l.to, l.last = l.entries[i-1].cookie, false
			return
		}
		size += entrySize + len(e.name)
	}
}

// list returns a listing of a directory that goes on after a cookie. The first call of a client,
// without a cookie, sees the directory as it is now.
func (x *execution) list(dir inode, a attributes, cookie uint64) (*listing, error) {
	if cookie != 0 {
		if l := x.listings.get(a.identity, a.mtime, cookie); l != nil {
			return l, nil
		}
	}
	l := &listing{id: a.identity, changed: a.mtime, read: time.Now(), from: cookie, to: 1<<63 - 1, last: true}
	if err := dir.List(l.add); err != nil {
		return nil, err
	}
	l.cut()
	l.entries = slices.Clone(l.entries) // without the room for those that were cut
	x.listings.put(l)
	return l, nil
}

// Lengths of READDIR3resok and READDIRPLUS3resok (RFC 1813 §3.3.16, §3.3.17).
const (
	listingLen   = 4 + attributesLen + 8 + 4 + 4 // without entries
	entryLen     = 4 + 8 + 4 + 8                 // with its predecessor's "follows", without the name
	entryPlusLen = 4 + attributesLen + 4 + 4 + handleMax
)

// page returns the entries after a cookie that fit into so many bytes, and whether they are the
// last. Each occupies more bytes beside those of READDIR.
func (l *listing) page(dots []entry, cookie uint64, room, more int) (entries []entry, eof bool) {
	from := sort.Search(len(l.entries), func(i int) bool { return l.entries[i].cookie > cookie })
	entries = slices.DeleteFunc(dots, func(e entry) bool { return e.cookie <= cookie })
	first := len(entries)
	entries = append(entries, l.entries[from:min(len(l.entries), from+room/entryLen+1)]...) // one more than may fit
	n := 0
	for ; n < len(entries); n++ {
		if room -= entryLen + (len(entries[n].name)+3)&^3 + more; room < 0 {
			break
		}
	}
	eof = n == len(entries) && from+n-first == len(l.entries) && l.last
	for n > 0 && n < len(entries) && entries[n].cookie == entries[n-1].cookie { // they cannot be parted
		n--
	}
	return entries[:n], eof
}

// readdir serves READDIR and READDIRPLUS.
func (x *execution) readdir() error {
	dir, a, err := x.find(0)
	switch {
	case err != nil:
		return err
	case a.kind != kindDirectory:
		return syscall.ENOTDIR
	}
	cookie := x.uint64(1)
	l, err := x.list(dir, a, cookie)
	if err != nil {
		return err
	}
	dots := []entry{{cookieSelf, ".", a.number}, {cookieParent, "..", a.number}}
	if up, err := x.keep(dir.Parent()); err == nil {
		if a, err := up.Attributes(); err == nil {
			dots[1].number = a.number
		}
	}
	plus := x.procedure == procReaddirplus
	room, more := int(min(x.uint32(3), maxTransfer)), 0
	if plus { // dircount, the limit without attributes and handles, would only make pages smaller
		room, more = int(min(x.uint32(4), maxTransfer)), entryPlusLen
	}
	entries, eof := l.page(dots, cookie, max(0, room-listingLen), more)
	if len(entries) == 0 && !eof {
		return nfsToosmall
	}
	x.words(1)
	x.attributes(a)
	x.uint64s(0) // the verifier
	for _, e := range entries {
		var a attributes
		var handle []byte
		if plus && e.cookie > cookieParent {
			if a, handle, err = dir.Stat(e.name); err == nil {
				e.number = a.number
			}
		}
		x.words(1)
		x.uint64s(e.number)
		x.reply = appendOpaque(x.reply, []byte(e.name))
		x.uint64s(e.cookie)
		switch {
		case !plus:
		case len(handle) == 0: // one of the two, or it has been removed meanwhile
			x.words(0, 0)
		default:
			x.words(1)
			x.attributes(a)
			x.words(1)
			x.reply = appendOpaque(x.reply, handle)
		}
	}
	x.words(0)
	x.bool(eof)
	return nil
}
