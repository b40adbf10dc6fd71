package sandbox

import (
	"context"
	"fmt"
	"regexp"
	"strings"
)

// MarrowID is the brand id of Marrow Books.
const MarrowID = "01M8F2XW4QN5D8Y1GJ6SE0BKSH"

// Marrow is a bookshop that has no delegation: it tells everybody the same.
func Marrow() Brand {
	return Brand{
		ID:          MarrowID,
		Name:        "Marrow Books",
		Description: "Marrow Books' agent: what is on the shelf, when the shop is open, how orders travel.",
		Skills: []Skill{{
			ID: "shop", Name: "The shop",
			Description: "Says which titles are on the shelf, when the shop is open, and how orders are sent.",
			Tags:        []string{"book", "books", "stock", "order", "delivery", "opening hours"},
			Examples:    []string{"Do you have The Sea Atlas?", "When are you open?"},
		}},
		Closes:  "Goodbye.",
		Respond: func(_ context.Context, t Turn) (Reply, error) { return bookshop(t.Text), nil },
	}
}

// shelf is the stock.
var shelf = []struct {
	title  string
	copies int
}{
	{"The Sea Atlas", 3},
	{"A Field Guide to Rain", 1},
	{"Letters from the Lighthouse", 0},
}

var (
	saysOrder = regexp.MustCompile(`(?i)\b(orders?|deliver(y|ed)?|shipping|parcel|returns?)\b`)
	saysOpen  = regexp.MustCompile(`(?i)\b(open|opening|hours|closed?)\b`)
	saysStock = regexp.MustCompile(`(?i)\b(stock|shelf|books?|titles?|have)\b`)
)

func bookshop(text string) Reply {
	lower := strings.ToLower(text)
	for _, book := range shelf {
		if !strings.Contains(lower, strings.ToLower(book.title)) {
			continue
		}
		if book.copies == 0 {
			return Reply{Text: fmt.Sprintf("“%s” is sold out; new copies come on Thursday.", book.title)}
		}
		return Reply{Text: fmt.Sprintf("“%s” is on the shelf: %d left.", book.title, book.copies)}
	}
	switch {
	case saysBye.MatchString(text):
		return Reply{Text: "Goodbye. This conversation is closed.", Close: true}
	case saysOrder.MatchString(text):
		return Reply{Text: "Orders leave the shop the same day until noon and arrive within two working days. The number on your receipt finds yours at the counter."}
	case saysOpen.MatchString(text):
		return Reply{Text: "The shop is open Monday to Saturday, 10:00 to 18:30."}
	case saysStock.MatchString(text):
		lines := []string{"These are the titles of the week:"}
		for _, book := range shelf {
			lines = append(lines, fmt.Sprintf("- %s (%d on the shelf)", book.title, book.copies))
		}
		return Reply{Text: strings.Join(lines, "\n")}
	}
	return Reply{Text: "This is Marrow Books. Ask for a title, for opening hours, or how orders are sent."}
}
