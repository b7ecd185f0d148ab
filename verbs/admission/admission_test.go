package admission_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"

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

// ready reports whether a place may be used, and fails if it was refused with another error.
func (u *user) ready(t *testing.T, refusal error) bool {
	t.Helper()
	over, end := context.WithCancel(context.Background())
	end()
	switch err := u.Wait(over); {
	case err == nil && refusal == nil:
		return true
	case errors.Is(err, context.Canceled) && refusal == nil, refusal != nil && errors.Is(err, refusal):
	default:
		t.Fatalf("%v, want %v", err, refusal)
	}
	return false
}

// TestLeaving: displaced users that have not left are half of the places at most. While they are,
// newcomers wait, in turn, and none is refused.
func TestLeaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := admission.New[string](8)
		var all []*user
		for range 11 { // a peer has 4 places; another 4 leave
			all = append(all, enter(t, g, "a", nil))
		}
		if s := g.Stats(); s.Held != 8 || s.Displaced != 4 || s.Refused != 0 {
			t.Errorf("%+v", s)
		}
		if !all[3].ended || all[4].ended {
			t.Error("the wrong ones were displaced")
		}
		if !all[7].ready(t, nil) || all[8].ready(t, nil) || all[8].Prove() {
			t.Error("the ninth does not wait")
		}
		enter(t, g, "b", nil).Leave() // it has a place, and does not wait
		waited := make(chan error)
		go func() { waited <- all[8].Wait(t.Context()) }()
		synctest.Wait()
		all[0].Leave()
		ok(t, <-waited)
		if !all[8].ready(t, nil) || all[9].ready(t, nil) || !all[4].ended || all[5].ended {
			t.Error("the place is not that of the one who came first")
		}
		all[9].Leave() // it waits no more
		all[5].Leave()
		if !all[10].ready(t, nil) || all[6].ended {
			t.Error("it waits, or somebody is displaced, though a place is free")
		}
		for _, u := range all {
			u.Leave()
		}
		if s := g.Stats(); s.Held != 0 || s.Refused != 1 {
			t.Errorf("%+v", s)
		}
	})
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestCrowd: not many wait, and those of one peer do not keep another from waiting.
func TestCrowd(t *testing.T) {
	g := admission.New[string](4)
	for _, peer := range []string{"a", "a", "b", "c", "a", "a"} {
		enter(t, g, peer, nil) // 4 places, and 2 leave
	}
	first, second := enter(t, g, "a", nil), enter(t, g, "a", nil)
	enter(t, g, "a", admission.ErrFull)
	other := enter(t, g, "d", nil)
	if first.ready(t, nil) || second.ready(t, admission.ErrFull) || other.ready(t, nil) {
		t.Error("not the right ones wait")
	}
	second.Leave() // has no effect
	enter(t, g, "e", admission.ErrFull)
	if s := g.Stats(); s.Refused != 3 {
		t.Errorf("%+v", s)
	}
}

// TestRandom: whatever peers do, places are neither lost nor exceeded.
func TestRandom(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	g := admission.New[string](10)
	over, end := context.WithCancel(t.Context())
	end()
	var users, waiting []*user
	for range 20000 {
		switch n := r.IntN(4); {
		case n < 2:
			u := new(user)
			p, err := g.Enter(string(rune('a'+r.IntN(6))), func() { u.ended = true })
			if u.Place = p; err == nil && u.ready(t, nil) {
				users = append(users, u)
			} else if err == nil {
				waiting = append(waiting, u)
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
		waiting = slices.DeleteFunc(waiting, func(u *user) bool {
			err := u.Wait(over)
			if err == nil {
				users = append(users, u)
			}
			return !errors.Is(err, context.Canceled)
		})
		if held := g.Stats().Held; held != len(users) || held > 15 || len(waiting) > 5 {
			t.Fatalf("%d are held by %d users, and %d wait", held, len(users), len(waiting))
		}
	}
	for _, u := range slices.Concat(users, waiting) {
		u.Leave()
	}
	if s := g.Stats(); s.Held != 0 {
		t.Errorf("%+v", s)
	}
}
