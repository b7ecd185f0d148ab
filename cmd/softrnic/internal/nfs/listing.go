package nfs

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"io/fs"
	"path"
	"slices"
	"sort"
	"sync"
	"time"

	gonfs "github.com/willscott/go-nfs"
	"github.com/willscott/go-nfs/file"
)

// listing is what a directory had at a moment, in the order of the cookies. go-nfs's cookies are
// positions: names would be left out, or come twice, when others are removed or created between two
// calls. Here a cookie is a digest of the name. It remains valid for ever, so there is no verifier.
type listing struct {
	id      identity // of the directory
	changed time.Time
	read    time.Time
	entries []entry
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
	mu      sync.Mutex
	kept    []*listing // the last used one is last
	entries int        // of all of them
}

const (
	maxListed  = 1 << 20 // entries that are kept, at about 100 bytes each; a larger directory is kept alone
	listingAge = 2 * time.Second
)

// get returns a kept listing to go on with: of a directory that has not changed, or did so since a
// short time only, as when a client removes what it lists.
func (l *listings) get(id identity, changed time.Time) *listing {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.kept, func(k *listing) bool { return k.id == id })
	if i < 0 {
		return nil
	}
	k := l.kept[i]
	if !k.changed.Equal(changed) && time.Since(k.read) > listingAge {
		return nil
	}
	l.kept = append(slices.Delete(l.kept, i, i+1), k)
	return k
}

func (l *listings) put(k *listing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	drop := func(i int) {
		l.entries -= len(l.kept[i].entries)
		l.kept = slices.Delete(l.kept, i, i+1)
	}
	if i := slices.IndexFunc(l.kept, func(old *listing) bool { return old.id == k.id }); i >= 0 {
		drop(i)
	}
	l.kept = append(l.kept, k)
	l.entries += len(k.entries)
	for len(l.kept) > 1 && (l.entries > maxListed || len(l.kept) > maxKept) {
		drop(0)
	}
}

// list returns the listing of a directory. The first call of a client, without a cookie, sees it as
// it is now.
func (v *view) list(name string, info fs.FileInfo, cookie uint64) (*listing, error) {
	id := v.store.Identity(name, info)
	if cookie != 0 {
		if l := v.listings.get(id, info.ModTime()); l != nil {
			return l, nil
		}
	}
	l := &listing{id: id, changed: info.ModTime(), read: time.Now()}
	infos, err := v.store.ReadDir(name)
	if err != nil {
		return nil, v.failed(err)
	}
	l.entries = make([]entry, 0, len(infos))
	for _, i := range infos {
		l.entries = append(l.entries, entry{cookieOf(i.Name()), i.Name(), fileid(i)})
	}
	slices.SortFunc(l.entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.cookie, b.cookie), cmp.Compare(a.name, b.name))
	})
	v.listings.put(l)
	return l, nil
}

func fileid(info fs.FileInfo) uint64 { return file.GetInfo(info).Fileid }

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
	eof = n == len(entries) && from+n-first == len(l.entries)
	for n > 0 && n < len(entries) && entries[n].cookie == entries[n-1].cookie { // they cannot be parted
		n--
	}
	return entries[:n], eof
}

// readdir serves READDIR and READDIRPLUS.
func (v *view) readdir(c *rpcCall) []byte {
	name, ok := v.handles.find(c.bytes(0))
	if !ok {
		return c.fail(nfsStale)
	}
	info, err := v.Lstat(name)
	switch {
	case err != nil:
		return c.fail(statusOf(err))
	case !info.IsDir():
		return c.fail(nfsNotdir)
	}
	l, err := v.list(name, info, c.uint64(1))
	if err != nil {
		return c.fail(statusOf(err))
	}
	parent := fileid(info)
	if name != rootName {
		if up, err := v.Lstat(path.Dir(name)); err == nil {
			parent = fileid(up)
		}
	}
	dots := []entry{{cookieSelf, ".", fileid(info)}, {cookieParent, "..", parent}}
	plus := c.procedure == procReaddirplus
	room, more := int(min(c.uint32(3), maxTransfer)), 0
	if plus { // dircount, the limit without attributes and handles, would only make pages smaller
		room, more = int(min(c.uint32(4), maxTransfer)), entryPlusLen
	}
	entries, eof := l.page(dots, c.uint64(1), max(0, room-listingLen), more)
	if len(entries) == 0 && !eof {
		return c.fail(nfsToosmall)
	}
	var files []listed
	if plus {
		files = v.look(name, entries)
	}
	b := bytes.NewBuffer(words(c.accepted(acceptSuccess), uint32(nfsOK)))
	_ = gonfs.WritePostOpAttrs(b, gonfs.ToFileAttribute(info, name)) // a Buffer has no errors
	b.Write(make([]byte, 8))
	for i, e := range entries {
		b.Write(words(nil, 1, uint32(e.number>>32), uint32(e.number)))
		b.Write(appendOpaque(nil, []byte(e.name)))
		b.Write(words(nil, uint32(e.cookie>>32), uint32(e.cookie)))
		if !plus {
			continue
		}
		_ = gonfs.WritePostOpAttrs(b, files[i].attributes)
		if files[i].handle == nil {
			b.Write(words(nil, 0))
		} else {
			b.Write(appendOpaque(words(nil, 1), files[i].handle))
		}
	}
	end := uint32(0)
	if eof {
		end = 1
	}
	b.Write(words(nil, 0, end))
	return b.Bytes()
}

// listed is what READDIRPLUS adds to an entry: nothing for "." and "..", and for what has been
// removed meanwhile.
type listed struct {
	id         identity
	attributes *gonfs.FileAttribute
	handle     []byte
}

// look returns the attributes and the handles of a directory's entries.
func (v *view) look(dir string, entries []entry) []listed {
	files := make([]listed, len(entries))
	for i, e := range entries {
		if e.cookie <= cookieParent {
			continue
		}
		name := path.Join(dir, e.name)
		if info, err := v.store.Lstat(name); err == nil {
			files[i].id, files[i].attributes = v.store.Identity(name, info), gonfs.ToFileAttribute(info, name)
			entries[i].number = files[i].attributes.Fileid
		}
	}
	v.handles.ofEntries(dir, entries, files)
	return files
}
