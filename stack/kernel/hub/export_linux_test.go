package hub

import "time"

// SetWaits sets how long a route waits before it asks for rings again, and a client for a route before it refuses rings. undo undoes
// that.
func SetWaits(pause, route time.Duration) (undo func()) {
	oldPause, oldRoute := firstPause, routeWait
	firstPause, routeWait = pause, route
	return func() { firstPause, routeWait = oldPause, oldRoute }
}
