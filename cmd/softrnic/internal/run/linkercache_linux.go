package run

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"slices"
)

// linkerCache is where ldconfig writes which libraries the machine has.
const linkerCache = "/etc/ld.so.cache"

// The format of the file (glibc's sysdeps/generic/dl-cache.h, struct cache_file_new): a header, the
// entries, and the texts that these refer to by their offset, each with a zero at its end.
const (
	cacheMagic  = "glibc-ld.so.cache1.1" // older files, before glibc 2.32, have something before it
	cacheCount  = len(cacheMagic)        // the number of entries, 4 bytes
	cacheTexts  = cacheCount + 4         // the length of the texts
	cacheFlags  = cacheCount + 8
	cacheHeader = 48
	// Of an entry: 4 bytes each, except for the last.
	entryKind = 0  // the C library and the ABI
	entryName = 4  // offset of the library's name
	entryPath = 8  // and of its path
	entryNeed = 16 // what the processor must have: 8 bytes
	entryLen  = 24
)

// littleEndian are the bits of cacheFlags that say so.
const littleEndian = 2

// ourKind is the entryKind of glibc's libraries that programs for this processor use.
var ourKind = map[string]uint32{"amd64": 0x0303, "arm64": 0x0a03}[runtime.GOARCH]

// cachedLibrary is an entry of the cache.
type cachedLibrary struct {
	path string
	ours bool // for this processor, whichever model it is
}

// readCache returns the entries of a cache with the given names. ok is false if it is not of the
// known format.
func readCache(file string, names []string) (found map[string][]cachedLibrary, ok bool) {
	b, err := os.ReadFile(file)
	if err != nil || len(b) < cacheHeader || string(b[:len(cacheMagic)]) != cacheMagic || b[cacheFlags]&3 != littleEndian {
		return nil, false
	}
	le := binary.LittleEndian
	count := le.Uint32(b[cacheCount:])
	if cacheHeader+uint64(count)*entryLen+uint64(le.Uint32(b[cacheTexts:])) > uint64(len(b)) {
		return nil, false
	}
	text := func(at uint32) []byte {
		t, _, _ := bytes.Cut(b[min(uint64(at), uint64(len(b))):], []byte{0})
		return t
	}
	found = map[string][]cachedLibrary{}
	for i := range count {
		e := b[cacheHeader+int(i)*entryLen:]
		if name := string(text(le.Uint32(e[entryName:]))); slices.Contains(names, name) {
			found[name] = append(found[name], cachedLibrary{string(text(le.Uint32(e[entryPath:]))),
				le.Uint32(e[entryKind:]) == ourKind && le.Uint64(e[entryNeed:]) == 0})
		}
	}
	return found, true
}

// missingInCache returns those of some libraries that the dynamic linker does not find, according
// to its cache. sure is false if the linker may find a library that the cache lacks, or may reject
// one that it has.
func missingInCache(cache string, libs []string) (missing []string, sure bool) {
	const libc = "libc.so.6"
	found, ok := readCache(cache, append([]string{libc}, libs...))
	if !ok || os.Getenv("LD_LIBRARY_PATH") != "" {
		return nil, false
	}
	// The linker looks in some directories without the cache, too. One of them has the C library.
	dirs := []string{"/lib", "/lib64", "/usr/lib", "/usr/lib64"}
	for _, l := range found[libc] {
		dirs = append(dirs, filepath.Dir(l.path))
	}
	exists := func(file string) bool { _, err := os.Stat(file); return err == nil }
	for _, lib := range libs {
		switch {
		case slices.ContainsFunc(found[lib], func(l cachedLibrary) bool { return l.ours && exists(l.path) }):
		case len(found[lib]) > 0, slices.ContainsFunc(dirs, func(dir string) bool { return exists(filepath.Join(dir, lib)) }):
			return nil, false
		default:
			missing = append(missing, lib)
		}
	}
	return missing, true
}
