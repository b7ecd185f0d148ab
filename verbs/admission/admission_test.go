package admission_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/softrnic/softrnic/verbs/admission"
)

// user is a user of a place.
type user struct {
	*admission.Place[string]
	ended bool
}

func enter(t *testing.T, g *admission.Gate[string], peer string, want error) *user {
	t.Helper()
	u := new(user)
	var err error
	if u.Place, err = g.Enter(peer, func() { u.ended = true }); !errors.Is(err, want) {
		t.Fatalf("%s: %v, want %v", peer, err, want)
	}
	return u
}

// TestShares: a peer has half of what the others leave, however many places it asks for, and so
// does the next.
func TestShares(t *testing.T) {
	g := admission.New[string](16)
	var known []*user
	for peer, most := range []int{8, 4, 2, 1} {
		name := string(rune('a' + peer))
		for range most {
			u := enter(t, g, name, nil)
			u.Prove()
			known = append(known, u)
		}
		enter(t, g, name, admission.ErrShare)
	}
	enter(t, g, "e", nil).Prove()
	enter(t, g, "f", admission.ErrFull)
	if s := g.Stats(); s.Held != 16 || s.Refused != 5 || s.Displaced != 0 {
		t.Errorf("%+v", s)
	}
	known[0].Leave()
	known[0].Leave() // has no effect
	enter(t, g, "f", nil)
	enter(t, g, "g", admission.ErrFull)
}

// TestStrangers: beyond its share, a peer's oldest stranger makes room. When all places are taken,
// the oldest of the peer with most strangers does so, if more than half are strangers'.
func TestStrangers(t *testing.T) {
	g := admission.New[string](8)
	a := []*user{enter(t, g, "a", nil), enter(t, g, "a", nil), enter(t, g, "a", nil), enter(t, g, "a", nil)}
	if !a[0].Prove() {
		t.Error("a stranger was displaced early")
	}
	a = append(a, enter(t, g, "a", nil))
	if a[0].ended || !a[1].ended || a[2].ended {
		t.Error("it was not the oldest stranger of the peer that ended")
	}
	if a[1].Prove() {
		t.Error("a displaced one is proved")
	}
	enter(t, g, "b", nil)
	enter(t, g, "b", nil)
	enter(t, g, "c", nil)
	enter(t, g, "d", nil)
	enter(t, g, "e", nil)
	if !a[2].ended || a[3].ended {
		t.Error("it was not the oldest stranger of the peer with most that ended")
	}
	a[3].Prove()
	a[4].Prove()
	enter(t, g, "f", nil).Prove()
	enter(t, g, "g", admission.ErrFull) // 4 of 8 are strangers
}

// TestSecondPlace: a host needs a second place after it has proved the first, while strangers have
// all places but one. It gets one of theirs.
func TestSecondPlace(t *testing.T) {
	g := admission.New[string](8)
	enter(t, g, "host", nil).Prove()
	for peer, most := range []int{4, 2} {
		for range most {
			enter(t, g, string(rune('a'+peer)), nil)
		}
	}
	for range 2 {
		enter(t, g, "host", nil).Prove()
	}
	enter(t, g, "host", admission.ErrShare) // 4 of 8 are strangers
	if s := g.Stats(); s.Displaced != 2 {
		t.Errorf("%+v", s)
	}
}

// TestLeaving: displaced users that do not leave are not many.
func TestLeaving(t *testing.T) {
	g := admission.New[string](8)
	var all []*user
	for range 8 {
		all = append(all, enter(t, g, "a", nil))
	}
	enter(t, g, "a", admission.ErrShare)
	if s := g.Stats(); s.Held != 8 || s.Displaced != 4 {
		t.Errorf("%+v", s)
	}
	all[0].Leave()
	enter(t, g, "a", nil)
}

// TestRandom: whatever peers do, places are neither lost nor exceeded.
func TestRandom(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	g := admission.New[string](10)
	var users []*user
	for range 20000 {
		switch n := r.IntN(4); {
		case n < 2:
			u := new(user)
			if p, err := g.Enter(string(rune('a'+r.IntN(6))), func() { u.ended = true }); err == nil {
				u.Place = p
				users = append(users, u)
			}
		case len(users) == 0:
		case n == 2:
			if u := users[r.IntN(len(users))]; u.Prove() == u.ended {
				t.Fatal("Prove does not say that the place is displaced")
			}
		default:
			i := r.IntN(len(users))
			users[i].Leave()
			users = append(users[:i], users[i+1:]...)
		}
		if held := g.Stats().Held; held != len(users) || held > 15 {
			t.Fatalf("%d are held by %d users", held, len(users))
		}
	}
	for _, u := range users {
		u.Leave()
	}
	if s := g.Stats(); s.Held != 0 {
		t.Errorf("%+v", s)
	}
}
