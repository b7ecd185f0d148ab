//go:build linux

package sockets

// recent is a map of limited size that drops the oldest entries. It has the program's sockets,
// whose closing is not reported to the agent, and hosts, whose number is not limited.
type recent[K comparable, V any] struct {
	most  int
	of    map[K]V
	order []K // oldest first; includes deleted keys
}

func newRecent[K comparable, V any](most int) recent[K, V] {
	return recent[K, V]{most: most, of: map[K]V{}}
}

// get returns the value of a key, if there is one.
func (r *recent[K, V]) get(k K) (v V, ok bool) {
	v, ok = r.of[k]
	return v, ok
}

// put adds or changes an entry.
func (r *recent[K, V]) put(k K, v V) {
	if _, there := r.of[k]; !there {
		for len(r.of) >= r.most {
			r.delete(r.order[0])
		}
		r.order = append(r.order, k)
	}
	r.of[k] = v
}

// delete removes an entry.
func (r *recent[K, V]) delete(k K) {
	delete(r.of, k)
	for len(r.order) > 0 && !r.has(r.order[0]) {
		r.order = r.order[1:]
	}
	if len(r.order) > 2*r.most { // many deleted keys may follow one old entry
		kept := make([]K, 0, r.most)
		seen := make(map[K]bool, r.most)
		for _, o := range r.order {
			if r.has(o) && !seen[o] {
				kept, seen[o] = append(kept, o), true
			}
		}
		r.order = kept
	}
}

func (r *recent[K, V]) has(k K) bool {
	_, ok := r.of[k]
	return ok
}
